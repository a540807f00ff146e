"""How the pages of docs/ are run, which of them are generated, and how Sphinx takes them."""
