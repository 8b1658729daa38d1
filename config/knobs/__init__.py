"""The one table of knobs; help, docs/knobs.md, parsers and the refusal of misspelt names are made of it."""
