import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.JSON;
import org.openapitools.client.api.AdminApi;
import org.openapitools.client.api.InternalApi;
import org.openapitools.client.model.Claim;
import org.openapitools.client.model.ClaimItem;
import org.openapitools.client.model.ClaimRequest;
import org.openapitools.client.model.ClaimStatus;
import org.openapitools.client.model.Code;
import org.openapitools.client.model.Limits;
import org.openapitools.client.model.NewCampaign;
import org.openapitools.client.model.Problem;

/** Takes a claim from its hold to its return with the client generated from openapi.json (tests/clients.sh). */
public final class Play {
    /** The maximum value of a limit, which does not fit in an int. */
    private static final long MOST = 4294967295L;

    public static void main(String[] arguments) throws Exception {
        AdminApi admin = new AdminApi(client("ADMIN_URL"));
        InternalApi core = new InternalApi(client("INTERNAL_URL"));

        Limits limits = new Limits().total(MOST);
        NewCampaign campaign = new NewCampaign().id("java").name("Java").startsAt(OffsetDateTime.now().minusHours(1));
        campaign.limits(limits).holdSeconds(600L);
        is(MOST, admin.createCampaign(campaign).getLimits().getTotal());

        ClaimRequest request = new ClaimRequest().campaignId("java").userId("alice").idempotencyKey("k").quantity(MOST);
        Claim held = core.createClaim(request, "1").getClaim();
        is(ClaimStatus.HELD, held.getStatus());
        is(MOST, held.getQuantity());
        is(Code.SOLD_OUT, refusal(core, new ClaimRequest().campaignId("java").userId("bob").idempotencyKey("k")));

        is(ClaimStatus.GRANTED, core.confirmClaim(held.getId()).getClaim().getStatus());
        is(ClaimStatus.RETURNED, core.returnClaim(held.getId()).getClaim().getStatus());
        ClaimItem listed = listed(admin, held.getId());
        is(MOST, listed.getQuantity());
        is(held.getClaimedAt().toInstant(), listed.getClaimedAt().toInstant());
        System.out.println("passed with the Java client");
    }

    /** Returns a client of the listener whose URL is in the variable, with TOKEN as its bearer token. */
    private static ApiClient client(String variable) {
        ApiClient client = new ApiClient();
        client.updateBaseUri(System.getenv(variable));
        String token = "Bearer " + System.getenv("TOKEN");
        return client.setRequestInterceptor(call -> call.header("Authorization", token));
    }

    private static Code refusal(InternalApi core, ClaimRequest request) throws Exception {
        try {
            core.createClaim(request, null);
        } catch (ApiException refused) {
            return JSON.getDefault().getMapper().readValue(refused.getResponseBody(), Problem.class).getCode();
        }
        throw new AssertionError("the claim was not denied");
    }

    /** Waits until SQL has the return, and returns the claim in the list. */
    private static ClaimItem listed(AdminApi admin, String id) throws Exception {
        Instant end = Instant.now().plus(Duration.ofSeconds(45));
        while (Instant.now().isBefore(end)) {
            for (ClaimItem item : admin.listClaims("java", 10, null, "alice", ClaimStatus.RETURNED, null).getItems()) {
                is(id, item.getId());
                return item;
            }
        }
        throw new AssertionError("the returned claim is not listed");
    }

    private static void is(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError(found + " instead of " + expected);
        }
    }
}
