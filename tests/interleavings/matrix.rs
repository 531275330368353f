//! Prints the explored schedules as tables for a terminal.

use std::collections::BTreeMap;

use super::protocol::{PROTOCOLS, Protocol};

/// Number of schedules by A and B.
pub type Counts = BTreeMap<(Protocol, Protocol), usize>;

/// Prints the number of schedules of each pair. Columns are numbered in the order of the rows; names are cut
/// to fit 80 columns.
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
