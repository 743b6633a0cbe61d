//! One path has one content, on every node, always: what receipts said, what manifests say, and what
//! lies where readers look.

use barque_bundle::Sha256Digest;

use crate::world::World;

pub fn check(world: &World) -> Vec<String> {
    let mut broken = world.oracle.broken();
    let known = world.oracle.known();
    for (n, node) in world.nodes.iter().enumerate() {
        let files = world.files(n);
        for (path, (sha256, _)) in &files {
            if known.get(path).is_some_and(|k| k.sha256.to_string() != *sha256) {
                broken.push(format!(
                    "node {n} says that {path} is {sha256}, a receipt said otherwise"
                ));
            }
        }
        let landing = node.data.join("landing");
        let mut folders = vec![landing.clone()];
        while let Some(folder) = folders.pop() {
            for item in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let at = item.path();
                if at.is_dir() {
                    folders.push(at);
                    continue;
                }
                let path = at.strip_prefix(&landing).unwrap().to_str().unwrap().to_owned();
                let lies = Sha256Digest::of(&std::fs::read(&at).unwrap()).to_string();
                if files.get(&path).is_none_or(|(sha256, _)| *sha256 != lies) {
                    broken.push(format!("node {n} shows {path} as {lies}: {:?}", files.get(&path)));
                }
            }
        }
    }
    broken
}
