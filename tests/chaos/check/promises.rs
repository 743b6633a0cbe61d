//! Every file that a receipt says is held is in every manifest, held, with that content.

use crate::world::World;

pub fn check(world: &World) -> Vec<String> {
    let mut broken = Vec::new();
    for n in 0..world.nodes.len() {
        let files = world.files(n);
        for (path, known) in world.oracle.known() {
            if !known.is_promised {
                continue;
            }
            let expected = (known.sha256.to_string(), "held".to_owned());
            if files.get(&path) != Some(&expected) {
                broken.push(format!(
                    "a receipt says that {path} is held as {}; node {n} has {:?}",
                    known.sha256,
                    files.get(&path)
                ));
            }
        }
    }
    broken
}
