MODE = "auto"  # what muster's --ckpt-shim says, and "barred": checkpoint.go writes it
