//! A stock that is a row of `stock` in PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::app::App;
use crate::attempt::Attempt;
use crate::error::{Result, StockError};
use crate::store::Store;

/// Timeout of calls that no caller waits for.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Returns the deadline of a call that no caller waits for.
pub fn default_deadline() -> Instant {
    Instant::now() + WAIT_MAX
}

#[derive(Debug)]
pub struct StockRow {
    pub app: Arc<App>,
    pub id: String,
}

impl Store for StockRow {
    fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        Ok(Self { app: Arc::clone(app), id: key.to_owned() })
    }

    async fn set(&self, units: i64) -> Result<()> {
        let text = "INSERT INTO stock (id, units) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET units = $2";
        self.app.sql.run(default_deadline(), text, &[(&self.id).into(), units.into()]).await.map(drop)
    }

    async fn get(&self) -> Result<i64> {
        let text = "SELECT units FROM stock WHERE id = $1";
        let row = self.app.sql.row(default_deadline(), text, &[(&self.id).into()]).await?;
        row.map(|row| row[0]).ok_or(StockError::Missing)
    }

    async fn return_units(&self, attempt: &Attempt) -> Result<()> {
        let text = "UPDATE stock SET units = units + $2, version = version + 1 WHERE id = $1";
        let values = [(&self.id).into(), attempt.quantity.into()];
        self.app.sql.run(default_deadline(), text, &values).await.map(drop)
    }
}
