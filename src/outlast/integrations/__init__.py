"""outlast inside engines that people already run: one package each, and the only places that import them."""
