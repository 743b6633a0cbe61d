//! kill -9 at random points, hub and spoke: the same command again ends as if nothing had happened.

use std::collections::BTreeMap;

use libtest_mimic::Trial;

use crate::site::{Site, Spoke, pass_of, sized, tiny, tree};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial!(twenty_kills_of_each_side_end_in_the_same_content)]
}

const KILLS: u64 = 20;
const FILES_A_ROUND: u64 = 30;

/// A repeatable number below `below`.
fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// What has been written on the hub's side so far: names in staging and landing, and their bytes.
fn progress(site: &Site) -> u64 {
    let mut sum = 0;
    for folder in ["hub/staging", "hub/landing"] {
        let mut folders = vec![site.path().join(folder)];
        while let Some(folder) = folders.pop() {
            for item in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match item.metadata() {
                    Ok(m) if m.is_dir() => folders.push(item.path()),
                    Ok(m) => sum += 1 + m.len() / 1024,
                    Err(_) => {}
                }
            }
        }
    }
    sum
}

fn add_files(spoke: &Spoke, round: u64) {
    for n in 0..FILES_A_ROUND {
        let path = format!("d/m/2024/03/{:02}/{:02}/f{n}.parquet", round % 28 + 1, n % 24);
        spoke.put(&path.replace("/f", &format!("/r{round}f")), &tiny(round * 1000 + n));
    }
    spoke.put(&format!("d/large/2024/03/01/00/r{round}.parquet"), &sized(round, 3_000_000));
}

/// Waits until the hub's side has moved by about so much, or the pass has ended.
fn until_progress(site: &Site, push: &mut std::process::Child, by: u64) {
    let start = progress(site);
    while progress(site) < start + by && push.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
}

fn twenty_kills_of_each_side_end_in_the_same_content() {
    let mut seed = 7;
    let site = Site::new();
    let mut hub = Some(site.hub());
    let address = hub.as_ref().unwrap().address.clone();
    let spoke = site.spoke("s");
    let mut in_the_middle = 0;
    for round in 0..2 * KILLS {
        add_files(&spoke, round);
        let mut push = spoke.start_push();
        // A round writes about 3,000 units: most kills fall into the middle of it.
        until_progress(&site, &mut push, random(&mut seed, 3_200));
        in_the_middle += u64::from(push.try_wait().unwrap().is_none());
        if round % 2 == 0 {
            push.kill().unwrap();
            push.wait().unwrap();
        } else {
            hub.take().unwrap().kill();
            let pass = pass_of(push.wait_with_output().unwrap());
            assert!(matches!(pass.code, 0 | 75), "{pass:?}");
            assert_eq!(pass.count("failed"), 0, "{pass:?}");
            hub = Some(site.hub_with(&address, &[]));
        }
    }
    assert!(in_the_middle >= KILLS, "only {in_the_middle} kills hit a running pass");
    let last = spoke.push();
    assert_eq!((last.code, last.count("left"), last.count("failed")), (0, 0, 0), "{last:?}");
    assert_eq!(spoke.push().count("sent"), 0);
    site.assert_landed(&[&spoke]);
    let source: BTreeMap<String, (String, u64, String)> = tree(&spoke.source())
        .into_iter()
        .map(|(p, (sha, size))| (format!("s/{p}"), (sha.to_string(), size, "held".to_owned())))
        .collect();
    assert_eq!(site.manifest(), source);
    let status = spoke.status();
    assert_eq!(status["synced"].as_u64().unwrap(), source.len() as u64);
    assert_eq!(status["pending"].as_u64().unwrap() + status["in_flight"].as_u64().unwrap(), 0);
    // The clean-up at a start leaves nothing in staging.
    hub.take().unwrap().kill();
    let _hub = site.hub_with(&address, &[]);
    assert_eq!(tree(&site.path().join("hub/staging")).len(), 0);
}
