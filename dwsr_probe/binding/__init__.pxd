# Cython units that bind csrc/: convert, call, convert back. All are linked into dwsr_probe._core,
# which also loads them: Python code uses their names as attributes of _core.
