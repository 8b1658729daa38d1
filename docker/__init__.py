"""How the kit is shipped: what runs first inside the container, and the image's build, run and test."""
