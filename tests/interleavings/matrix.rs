//! What was played, as tables no wider than a terminal.

use std::collections::BTreeMap;

use super::protocol::{PROTOCOLS, Protocol};

/// Schedules by A and B.
pub type Counts = BTreeMap<(Protocol, Protocol), usize>;

/// Prints how many schedules each pair had; protocols are numbered in the order of the list. Names are cut where 80
/// columns would be too few.
pub fn print(title: &str, counts: &Counts) {
    println!("\n{title}: A down, B across");
    print!("{:<8}", "");
    for number in 1..=PROTOCOLS.len() {
        print!("{number:>4}");
    }
    println!();
    for (row, (a, name)) in PROTOCOLS.iter().enumerate() {
        print!("{:>2} {name:<5.5}", row + 1);
        for (b, _) in PROTOCOLS {
            match counts.get(&(*a, b)) {
                Some(count) => print!("{count:>4}"),
                None => print!("   ."),
            }
        }
        println!();
    }
}
