"""What may be in the body of a picture, format by format: read before anything of it is decoded."""
