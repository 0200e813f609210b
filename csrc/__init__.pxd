# Declarations of csrc/ for Cython: x.pxd declares what dwsr_probe/ uses of x.h. The headers are the
# contract; nothing is repeated here but names and types.
