//! Sending everything again changes nothing (D2): no position, no file, no copy.

use crate::world::World;

pub fn check(world: &World) -> Vec<String> {
    // Whether a node that holds a file answers at the moment is not a matter of what was sent.
    let files = |n: usize| {
        let mut files = world.files(n);
        for (_, state) in files.values_mut().filter(|(_, state)| state == "unavailable") {
            "held".clone_into(state);
        }
        files
    };
    let before: Vec<_> = (0..world.nodes.len()).map(files).collect();
    let position = world.position(0);
    world.send_all_again(0);
    world.wait_until_equal();
    let mut broken = Vec::new();
    for (n, before) in before.iter().enumerate() {
        if files(n) != *before {
            broken.push(format!("node {n} has other files after all was sent again"));
        }
    }
    if world.position(0) != position {
        broken.push(format!("the position went from {position} to {}", world.position(0)));
    }
    broken
}
