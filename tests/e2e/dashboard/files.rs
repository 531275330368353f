//! Core serves all files of the dashboard under a strict policy, and uPlot is an exact copy of the npm
//! package.

use std::fs;
use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::Value;
use support::{Core, Reply};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

async fn get(core: &Core, path: &str) -> Reply {
    core.client().call(Method::GET, &core.admin_url(path), "", &Value::Null).await
}

/// Returns the paths on the same host that a page, style or script refers to.
fn named(text: &str) -> Vec<String> {
    let quoted = text.split('"').skip(1).step_by(2);
    let local = quoted.filter_map(|path| match path.strip_prefix("./") {
        Some(name) => Some(format!("/dashboard/{name}")),
        None => (path.starts_with('/') && path.contains('.')).then(|| path.to_owned()),
    });
    local.collect()
}

#[tokio::test]
async fn every_referenced_file_is_served_and_allowed_by_the_policy() {
    let core = Core::start().await;
    let page = get(&core, "/").await.expect(200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let (mut unread, mut read) = (named(&page.text()), vec!["/".to_owned()]);
    assert!(unread.len() >= 5, "{unread:?}");
    while let Some(path) = unread.pop() {
        if read.contains(&path) {
            continue;
        }
        let file = get(&core, &path).await.expect(200);
        let policy = file.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert_eq!(file.header("x-content-type-options"), "nosniff");
        if file.header("content-type").starts_with("text/javascript") && !path.contains("uPlot") {
            unread.extend(named(&file.text()));
        }
        read.push(path);
    }
    let there = fs::read_dir(root().join("core/dashboard")).unwrap();
    let names = there.map(|file| file.unwrap().file_name().into_string().unwrap());
    let unused: Vec<_> = names
        .filter(|name| name != "index.html" && name != "uPlot.LICENSE")
        .filter(|name| !read.iter().any(|path| path.ends_with(&format!("/{name}"))))
        .collect();
    assert_eq!(unused, Vec::<String>::new(), "unused files of the dashboard");
    assert_eq!(get(&core, "/dashboard/none.js").await.status, 404);
}

#[tokio::test]
async fn the_page_has_no_inline_script_or_style() {
    let core = Core::start().await;
    let page = get(&core, "/").await.expect(200);
    assert!(!page.header("content-security-policy").contains("unsafe"), "the policy allows inline code");
    let text = page.text();
    for inline in ["<style", " style=", "<script>", " onclick=", "javascript:"] {
        assert!(!text.contains(inline), "{inline} in the page");
    }
}

#[test]
fn the_uplot_copy_matches_the_npm_package() {
    let package: Value =
        serde_json::from_str(&fs::read_to_string(root().join("package.json")).unwrap()).unwrap();
    let installed = root().join("node_modules/uplot");
    let theirs: Value =
        serde_json::from_str(&fs::read_to_string(installed.join("package.json")).unwrap()).unwrap();
    assert_eq!(package["devDependencies"]["uplot"], theirs["version"], "run npm install");
    for (ours, of_theirs) in [
        ("uPlot.iife.min.js", "dist/uPlot.iife.min.js"),
        ("uPlot.min.css", "dist/uPlot.min.css"),
        ("uPlot.LICENSE", "LICENSE"),
    ] {
        let same = fs::read(root().join("core/dashboard").join(ours)).unwrap()
            == fs::read(installed.join(of_theirs)).unwrap();
        assert!(same, "the copy differs: cp node_modules/uplot/{of_theirs} core/dashboard/{ours}");
    }
}
