//! The built binary, driven as people and scripts drive it.

fn main() {}
