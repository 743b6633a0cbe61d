//! A cursor over `/changes`, at whichever node, sees every change once and in order.

use crate::world::World;

pub fn check(world: &World) -> Vec<String> {
    let seen = world.read_changes_to_the_end();
    let mut broken = Vec::new();
    for (n, (position, _)) in (1u64..).zip(&seen) {
        if *position != n {
            broken.push(format!("the cursor saw position {position} where {n} was due"));
            break;
        }
    }
    let head = world.position(0);
    if seen.len() as u64 != head {
        broken.push(format!("the cursor saw {} changes of {head}", seen.len()));
    }
    let mut last = std::collections::BTreeMap::new();
    for (_, path) in &seen {
        *last.entry(path.clone()).or_insert(0u32) += 1;
    }
    for path in world.files(0).keys() {
        if !last.contains_key(path) {
            broken.push(format!("the cursor never saw {path}"));
        }
    }
    broken
}
