use super::*;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    serve: ServeArgs,
}

/// Returns the configuration of `serve` with these flags on an empty data directory; nothing is written.
fn load(flags: &[&str]) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().to_str().unwrap();
    let line = ["claimgate", "--data-dir", data_dir].into_iter().chain(flags.iter().copied());
    let args = <Line as clap::Parser>::try_parse_from(line).unwrap().serve;
    let config = Config::load_read_only(&args).map_err(|error| error.to_string());
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "a file was written");
    config
}

#[test]
fn without_flags_the_defaults_apply() {
    let config = load(&[]).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!((config.outbox_max, config.batch_max), (OUTBOX_MAX_DEFAULT, BATCH_MAX));
    assert_eq!(config.archive_after, ARCHIVE_AFTER_DEFAULT);
    assert_eq!(config.hold_extension_max, HOLD_EXTENSION_MAX_DEFAULT);
    assert!(config.drain.is_zero());
    assert!(config.redis_address.is_none() && config.database_url.starts_with("sqlite:"));
}

#[test]
fn the_claim_pages_address_must_be_an_origin() {
    assert_eq!(load(&[]).unwrap().page_url, None);
    assert_eq!(load(&["--page-url="]).unwrap().page_url, None);
    for text in ["https://claims.example.com", "https://Claims.example.com:443/"] {
        let page_url = load(&["--page-url", text]).unwrap().page_url;
        assert_eq!(page_url.as_deref(), Some("https://claims.example.com"), "{text}");
    }
}

#[test]
fn an_invalid_value_is_reported_with_its_variable_and_format() {
    for (flags, variable, part) in [
        (["--listen", "8080"], "CLAIMGATE_LISTEN", "address:port"),
        (["--admin-listen", "localhost"], "CLAIMGATE_ADMIN_LISTEN", "address:port"),
        (["--outbox-max", "0"], "CLAIMGATE_OUTBOX_MAX", "whole number, at least 1"),
        (["--batch-max", "257"], "CLAIMGATE_BATCH_MAX", "at most 256"),
        (["--redis-replicas", "1"], "CLAIMGATE_REDIS_REPLICAS", "own Redis has no replicas"),
        (["--redis-replicas", "-1"], "CLAIMGATE_REDIS_REPLICAS", "whole number"),
        (["--redis-maxmemory-mib", "-1"], "CLAIMGATE_REDIS_MAXMEMORY_MIB", "whole number"),
        (["--archive-after-s", "1.5"], "CLAIMGATE_ARCHIVE_AFTER_S", "whole number"),
        (["--hold-extension-max-s", "0"], "CLAIMGATE_HOLD_EXTENSION_MAX_S", "whole number, at least 1"),
        (["--drain-s", "301"], "CLAIMGATE_DRAIN_S", "0 to 300"),
        (["--drain-s", "-1"], "CLAIMGATE_DRAIN_S", "0 to 300"),
        (["--page-url", "claims.example.com"], "CLAIMGATE_PAGE_URL", "http(s)://HOST[:PORT]"),
        (["--page-url", "ftp://claims.example.com"], "CLAIMGATE_PAGE_URL", "http(s)://HOST[:PORT]"),
        (["--page-url", "https://shop.example.com/claims"], "CLAIMGATE_PAGE_URL", "without a path"),
        (["--page-url", "https://me@claims.example.com"], "CLAIMGATE_PAGE_URL", "http(s)://HOST[:PORT]"),
        (["--redis-url", "http://redis"], "CLAIMGATE_REDIS_URL", "redis://"),
        (["--redis-url", "redis-sentinel://a"], "CLAIMGATE_REDIS_URL", "redis+sentinel://"),
        (["--database-url", "mysql://db"], "CLAIMGATE_DATABASE_URL", "postgres://"),
    ] {
        let flag = format!("{}={}", flags[0], flags[1]);
        let error = load(&[&flag]).unwrap_err();
        assert!(error.starts_with(&format!("{variable}: ")) && error.contains(part), "{flag}: {error}");
    }
}
