//! What needs more than one crate to test: the fixtures' generator and the rules of the repository.

pub mod shapes;
