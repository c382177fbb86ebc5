"""How the house is built: imports between packages, names, the words of the glossary, the way of one request."""
