//! A stock that is a row in PostgreSQL: what all strategies do with it in the same way.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::app::App;
use crate::manager::{Result, StockError};

/// For calls that no caller waits for.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// When a call that no caller waits for has had time enough.
pub fn some_time() -> Instant {
    Instant::now() + WAIT_MAX
}

/// One row of `stock`.
#[derive(Debug)]
pub struct StockRow {
    /// The server whose connections are used.
    pub app: Arc<App>,
    /// Its id.
    pub id: String,
}

impl StockRow {
    /// The row `id`.
    pub fn new(app: &Arc<App>, id: &str) -> Self {
        Self { app: Arc::clone(app), id: id.to_owned() }
    }

    /// Inserts it, or sets its units.
    pub async fn init(&self, stock: u32) -> Result<()> {
        let text = "INSERT INTO stock (id, units) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET units = $2";
        self.app.sql.run(some_time(), text, &[(&self.id).into(), stock.into()]).await.map(drop)
    }

    /// Its units.
    pub async fn get(&self) -> Result<i64> {
        let text = "SELECT units FROM stock WHERE id = $1";
        let row = self.app.sql.row(some_time(), text, &[(&self.id).into()]).await?;
        row.map(|row| row[0]).ok_or(StockError::Missing)
    }

    /// More of them, in one statement: no strategy here needs more for that.
    pub async fn add(&self, quantity: u32) -> Result<()> {
        let text = "UPDATE stock SET units = units + $2, version = version + 1 WHERE id = $1";
        self.app.sql.run(some_time(), text, &[(&self.id).into(), quantity.into()]).await.map(drop)
    }
}
