//! Codes on the page: shown to their owner as soon as they are there.

use serde_json::json;
use support::times::from_now;

use super::{BUTTON, CODE, in_browser, page_world, text, visit};

#[test]
fn the_winner_sees_the_code() {
    in_browser("the_winner_sees_the_code", async {
        let world = page_world().await;
        let rules = json!({"id": "page-coded", "name": "Spring coupons", "starts_at": from_now(-60),
            "limits": {"total": 0, "per_user": 2}, "codes": true});
        world.core.create_with(rules).await;
        world.core.add_codes("page-coded", "SAVE-7F3A\nSAVE-91KQ\n").await.expect(200);
        world.core.patch("page-coded", json!({"limits": {"total": 2}})).await.expect(200);
        let page = visit(&world, "page-coded", "").await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        let shown = "document.getElementById('claim-id').textContent";
        page.until(shown, "SAVE-7F3A").await;
        assert!(text(&page, "detail").await.contains("Here is your code."));
        page.assert_accessible("a code").await;
        page.check_layout("13-code").await;
        let kept = page.eval("JSON.stringify({...localStorage, ...sessionStorage})").await;
        assert!(!kept.as_str().unwrap().contains("SAVE-"), "the browser keeps no code: {kept}");
        page.reload().await;
        page.until(shown, "SAVE-7F3A").await;
        page.press("#again").await;
        page.until(shown, "SAVE-91KQ").await;
        page.until("document.getElementById('others').textContent", "Also yours: No. 1 SAVE-7F3A").await;
        page.press("#lang").await;
        assert!(text(&page, "detail").await.contains("这是您的兑换码"));
        page.close().await;
    });
}
