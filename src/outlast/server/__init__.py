"""The server: the workers' door, the public API, tokens and rights, the page."""
