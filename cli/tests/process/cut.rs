//! A link that is cut in the middle of a pass.

use libtest_mimic::Trial;

use crate::proxy::CuttingProxy;
use crate::site::{Site, sized, tree};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial!(after_a_cut_at_half_the_bytes_the_newest_partitions_have_landed)]
}

fn after_a_cut_at_half_the_bytes_the_newest_partitions_have_landed() {
    const FILES: u64 = 48;
    const BYTES: usize = 40_000;
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    // In an order of names that is not the order of time.
    for n in 0..FILES {
        let (day, hour) = (n / 24 + 1, n % 24);
        spoke.put(
            &format!("d/m/2024/03/{day:02}/{hour:02}/f{:02}.parquet", (n * 7) % FILES),
            &sized(n, BYTES),
        );
    }
    let proxy = CuttingProxy::start(&hub.address, FILES * BYTES as u64 / 2);
    spoke.edit_config(&hub.address, &proxy.address);
    let pass = spoke.push();
    assert_eq!(pass.code, 75, "{pass:?}");
    assert_eq!(pass.count("failed"), 0);
    let landed = tree(&site.landing());
    let n = landed.len();
    assert!(n > 0 && n < 40, "{n} files landed");
    let mut by_time: Vec<(String, String)> = tree(&spoke.source())
        .into_keys()
        .map(|path| (path[..path.len() - "/f00.parquet".len()].to_owned(), path))
        .collect();
    by_time.sort_by(|a, b| b.cmp(a));
    let newest: std::collections::BTreeSet<String> =
        by_time.into_iter().take(n).map(|(_, path)| format!("s/{path}")).collect();
    assert_eq!(landed.into_keys().collect::<std::collections::BTreeSet<_>>(), newest);
    proxy.allow(u64::MAX);
    let rest = spoke.push();
    assert_eq!((rest.code, rest.count("left")), (0, 0), "{rest:?}");
    assert_eq!(rest.count("sent") + rest.count("present"), FILES);
    site.assert_landed(&[&spoke]);
}
