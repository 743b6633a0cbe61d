//! The reader of archives: no bytes make it panic, allocate by a length they state, or go on for
//! ever.

#![no_main]

use barque_bundle::archive::Members;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut members = Members::new(bytes);
    let mut buffer = [0u8; 512];
    while let Ok(Some(member)) = members.next_member() {
        assert!(member.offset <= bytes.len() as u64);
        while let Ok(n) = members.read(&mut buffer) {
            if n == 0 {
                break;
            }
        }
    }
    let _ = members.expect_end();
});
