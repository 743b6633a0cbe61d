//! Nodes at one position have one manifest, to the last row.

use crate::world::World;

pub fn check(world: &World) -> Vec<String> {
    let digests = world.digests();
    match digests.windows(2).all(|w| w[0] == w[1]) {
        true => Vec::new(),
        false => vec![format!("the manifests differ: {digests:?}")],
    }
}
