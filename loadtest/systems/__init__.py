"""What is under load: the kit, stock TorchServe, any URL, or the handler with no server around it."""
