//! The encoding and the collation of the database.

use serde_json::json;
use support::CoreOptions;
use support::available::available;
use support::postgres::Postgres;

use crate::poolers::with_database;

#[tokio::test]
async fn the_error_names_the_encoding_of_a_non_unicode_database() {
    let Some(postgres) = available("databases of other encodings", Postgres::start().await) else { return };
    for encoding in ["LATIN1", "WIN1252", "EUC_JP"] {
        let name = encoding.to_lowercase();
        let create = format!("CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0");
        postgres.run("postgres", &[&create]).await;
        let output = with_database(&["serve"], &postgres.url(&name)).await.ended(2);
        output.one_line(&format!("CLAIMGATE_DATABASE_URL: the database's encoding is {encoding}"));
        let output = with_database(&["doctor"], &postgres.url(&name)).await;
        assert!(output.out.contains(&format!("encoding is {encoding}")), "{output:?}");
        let tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'";
        let tables: i64 = sqlx::query_scalar(tables).fetch_one(&postgres.pool(&name)).await.unwrap();
        assert_eq!(tables, 0, "nothing was migrated");
    }
}

#[tokio::test]
async fn a_database_that_stores_bytes_holds_every_name() {
    let Some(postgres) = available("a database in SQL_ASCII", Postgres::start().await) else { return };
    let create = "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0";
    postgres.run("postgres", &[create]).await;
    let core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", postgres.url("bytes")).start().await;
    core.create_with(json!({"id": "tea", "name": "龙井茶", "limits": {"total": 5}})).await;
    assert_eq!(core.campaign("tea").await["name"], "龙井茶");
}

#[tokio::test]
async fn the_doctor_names_the_encoding_and_the_collation() {
    let Some(postgres) = available("a database in UTF8", Postgres::start().await) else { return };
    let url = postgres.database_sorted("sorted", "en-US").await;
    let output = with_database(&["doctor"], &url).await;
    let part = "checked: PostgreSQL: settings, clock, encoding UTF8, collation en-US of version ";
    assert!(output.out.contains(part), "{output:?}");
}
