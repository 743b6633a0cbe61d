//! A link that is cut in the middle of a pass.

use libtest_mimic::Trial;

use crate::proxy::CuttingProxy;
use crate::site::{Site, sized, tiny, tree};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(after_a_cut_at_half_the_bytes_the_newest_partitions_have_landed),
        trial!(a_file_that_never_gets_through_holds_up_no_other_and_the_pass_ends),
        trial!(what_a_link_damages_is_never_taken_and_the_pass_ends),
    ]
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

fn a_file_that_never_gets_through_holds_up_no_other_and_the_pass_ends() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    // Sorted first, in the newest partition.
    let poison = spoke.put("d/m/2024/12/31/23/a.parquet", &sized(1, 2_000_000));
    for n in 0..20 {
        spoke.put(&format!("d/m/2024/03/01/00/f{n}.parquet"), &sized(n + 2, 4_000));
    }
    // Too little in one piece for a part to be kept.
    let proxy = CuttingProxy::start_each(&hub.address, 60_000);
    spoke.edit_config(&hub.address, &proxy.address);
    for pass in [spoke.push(), spoke.push()] {
        assert_eq!((pass.code, pass.count("left"), pass.count("failed")), (75, 1, 0), "{pass:?}");
        assert_eq!(pass.report["stopped_by"], "did_not_get_through");
        assert_eq!(pass.count("sent") + pass.count("present"), 20);
        assert!(pass.count("duration_ms") < 45_000, "{pass:?}");
    }
    assert_eq!(tree(&site.landing()).len(), 20);
    spoke.edit_config(&proxy.address, &hub.address);
    assert_eq!(spoke.push().count("sent"), 1);
    assert!(poison.exists());
    site.assert_landed(&[&spoke]);
}

fn what_a_link_damages_is_never_taken_and_the_pass_ends() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("s");
    let mut bytes = tiny(1);
    bytes[8..24].copy_from_slice(crate::proxy::DAMAGED);
    spoke.put("d/m/damaged.parquet", &bytes);
    spoke.put("d/m/whole.parquet", &tiny(2));
    let proxy = CuttingProxy::start_damaging(&hub.address);
    spoke.edit_config(&hub.address, &proxy.address);
    for attempt in 1..=5 {
        let pass = spoke.push();
        let failed = u64::from(attempt == 5);
        let code = if failed == 1 { 3 } else { 75 };
        assert_eq!((pass.count("failed"), pass.count("left")), (failed, 1 - failed), "{pass:?}");
        assert_eq!(pass.code, code, "{pass:?}");
    }
    assert_eq!(site.manifest().len(), 1);
    spoke.edit_config(&proxy.address, &hub.address);
    crate::site::json(&[
        "ledger",
        "requeue",
        "--all",
        "failed",
        "--state",
        &spoke.state(),
        "--json",
    ]);
    assert_eq!(spoke.push().count("sent"), 1);
    site.assert_landed(&[&spoke]);
}
