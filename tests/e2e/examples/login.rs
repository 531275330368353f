//! docs/login.md.

use support::examples::Examples;

#[test]
fn every_providers_settings_are_run() {
    let mut login = Examples::of("docs/login.md");
    login.run_in("OIDC_CLIENT_ID=acme-drop", "tests/e2e/page/sign_in.rs");
    for start in [
        "USER_JWT_ISS=shop",
        "USER_JWT_ISS=https://acmeacmeacmeacmeacme.supabase.co/",
        "USER_JWT_ISS=https://acme.eu.auth0.com/",
        "USER_JWT_ISS=https://cognito-idp.",
        "USER_JWT_ISS=https://securetoken.google.com/",
        "USER_JWT_ISS=https://clerk.",
        "USER_JWT_ISS=https://acme.okta.com/",
        "USER_JWT_ISS=https://login.microsoftonline.com/",
        "USER_JWT_ISS=https://login.acme.example/realms/",
        "USER_JWT_ISS=https://acme.cloudflareaccess.com",
        "USER_JWT_ISS=https://appleid.apple.com",
    ] {
        login.run_in(start, "tests/e2e/edge/providers.rs");
    }
    login.end();
}
