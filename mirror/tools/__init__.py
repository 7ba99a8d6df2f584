"""The commands: train, evaluate, encode, search, compare, distill, export, push and others, one module each.
Must not know: studies."""
