//! docs/migrating.md: moves a running sale from a PostgreSQL database with orders, using the commands shown.

use support::available::available;
use support::examples::{ExampleShell, Examples};
use support::postgres::Postgres;
use support::wait::holds;
use support::{Core, SOON, eventually};

/// Orders in the old system: three to import, one cancelled, and one of another item.
const ORDERS: &str =
    "CREATE TABLE orders (id int, user_id text, quantity int, sku text, status text, created_at timestamptz);
    INSERT INTO orders VALUES
    (1, 'alice', 1, 'tickets', 'paid', '2026-11-20 12:30:00+00'),
    (2, 'bob', 1, 'tickets', 'reserved', '2026-11-20 12:31:00+00'),
    (3, 'carol', 1, 'tickets', 'cancelled', '2026-11-20 12:32:00+00'),
    (4, 'alice', 1, 'tickets', 'paid', '2026-11-21 12:33:00+00'),
    (5, 'dave', 1, 'books', 'paid', '2026-11-21 12:34:00+00');";

#[tokio::test]
async fn the_documented_commands_migrate_a_running_sale() {
    let Some(postgres) = available("examples of docs/migrating.md", Postgres::start().await) else { return };
    let old = postgres.database("old").await;
    let core = Core::start().await;
    let desk = ExampleShell::of(&core);
    let psql =
        format!("{}/psql --quiet --set=ON_ERROR_STOP=1 '{old}' --file=", postgres.programs().display());
    desk.write("orders.sql", ORDERS);
    let _ = desk.run(&format!("{psql}orders.sql")).await.ended(0);

    let mut moving = Examples::of("docs/migrating.md");
    let _ = desk.run(&moving.next("target/debug/claimgate campaign create tickets")).await.ended(0);
    desk.write("export.sql", moving.next(r"\copy (SELECT"));
    let _ = desk.run(&format!("{psql}export.sql")).await.ended(0);
    let sums = desk.run(&moving.next("awk")).await.ended(0);
    assert_eq!(sums.out, "3 3\n");
    let import = moving.next("target/debug/claimgate campaign import tickets claims.csv");
    let _ = desk.run(&import).await.ended(0).printed("3 claims imported, 0 already existed");
    let compare = moving.next("target/debug/claimgate campaign show tickets");
    let _ = desk.run(&compare).await.ended(0).printed("3 / 1000").printed("agree");
    let _ = desk.run(&moving.next("target/debug/claimgate campaign resume tickets")).await.ended(0);
    // A claim with an order's number as its key returns the imported claim.
    core.claim("tickets", "alice", "order-1").await.expect(200);
    core.claim("tickets", "erin", "order-6").await.expect(201);

    let counters = moving.next("user_id,quantity,claimed_at");
    core.create("counters", serde_json::json!({"total": 1000, "per_user": 3})).await;
    core.set_admin_state("counters", "pause").await.expect(200);
    desk.write("counters.csv", counters);
    let import = "target/debug/claimgate campaign import counters counters.csv";
    let _ = desk.run(import).await.ended(0).printed("2 claims imported");

    let export = moving.next("curl -sH");
    eventually(SOON, || async {
        let _ = desk.run(&export).await.ended(0);
        let since = std::fs::read_to_string(desk.directory().join("since.csv")).unwrap();
        holds(since.lines().count() == 5 && since.contains("tickets.erin."), || since.clone())
    })
    .await;
    moving.end();
}
