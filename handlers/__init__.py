"""What happens to a request inside a worker; this package is packed whole into every archive."""
