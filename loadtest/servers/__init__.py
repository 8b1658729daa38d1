"""What is measured: the kit's servers, plain TorchServe, any URL, and a handler without a server."""
