//! What was played, as tables no wider than a terminal.

use std::collections::BTreeMap;

use super::protocol::{PROTOCOLS, Protocol};

/// Prints how many schedules each pair had; protocols are numbered in the order of the list.
pub fn print(title: &str, counts: &BTreeMap<(Protocol, Protocol), usize>) {
    println!("\n{title}: A down, B across");
    let numbers: String = (1..=PROTOCOLS.len()).map(|number| format!("{number:>4}")).collect();
    println!("{:<16}{numbers}", "");
    for (row, (a, name)) in PROTOCOLS.iter().enumerate() {
        let cells = PROTOCOLS.iter().map(|(b, _)| match counts.get(&(*a, *b)) {
            Some(count) => format!("{count:>4}"),
            None => "   .".to_owned(),
        });
        println!("{:>2} {name:<13}{}", row + 1, cells.collect::<String>());
    }
}
