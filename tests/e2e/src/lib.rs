//! Black-box tests: through the API and the command line only. They live in `tests/`.
