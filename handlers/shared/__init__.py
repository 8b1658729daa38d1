"""What all handlers share; it knows nothing of TorchServe except in `torchserve.py`."""
