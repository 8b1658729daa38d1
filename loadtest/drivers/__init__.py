"""The programs that send the load; each gives raw samples back."""
