// Takes a claim from its hold to its return with the client generated from openapi.json (tests/clients.sh).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	claimgate "github.com/claimgate/claimgate-go"
)

// The maximum value of a limit.
const most = int64(4294967295)

func main() {
	if err := play(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("passed with the Go client")
}

// client returns a client of the listener whose URL is in the variable, with TOKEN as its bearer token.
func client(variable string) *claimgate.APIClient {
	configuration := claimgate.NewConfiguration()
	configuration.Servers = claimgate.ServerConfigurations{{URL: os.Getenv(variable)}}
	// Do not use the addresses that the document gives for each call.
	configuration.OperationServers = nil
	configuration.AddDefaultHeader("Authorization", "Bearer "+os.Getenv("TOKEN"))
	return claimgate.NewAPIClient(configuration)
}

func play(ctx context.Context) error {
	admin, core := client("ADMIN_URL").AdminAPI, client("INTERNAL_URL").InternalAPI

	campaign := claimgate.NewNewCampaign("go", "Go")
	campaign.SetStartsAt(time.Now().Add(-time.Hour))
	limits := claimgate.NewLimits()
	limits.SetTotal(most)
	campaign.SetLimits(*limits)
	campaign.SetHoldSeconds(600)
	made, _, err := admin.CreateCampaign(ctx).NewCampaign(*campaign).Execute()
	if err := is(err, most, made.GetLimits().Total.Get()); err != nil {
		return err
	}

	request := claimgate.NewClaimRequest("go", "k", "alice")
	request.SetQuantity(most)
	reply, _, err := core.CreateClaim(ctx).ClaimRequest(*request).ClaimgateAttempt("1").Execute()
	if err != nil {
		return err
	}
	held := reply.GetClaim()
	if err := is(nil, claimgate.CLAIMSTATUS_HELD, &held.Status); err != nil {
		return err
	}
	if err := is(nil, most, &held.Quantity); err != nil {
		return err
	}
	_, _, err = core.CreateClaim(ctx).ClaimRequest(*claimgate.NewClaimRequest("go", "k", "bob")).Execute()
	var refused *claimgate.GenericOpenAPIError
	if !errors.As(err, &refused) {
		return fmt.Errorf("the claim was not denied: %v", err)
	}
	problem, ok := refused.Model().(claimgate.Problem)
	if !ok || problem.GetCode() != claimgate.CODE_SOLD_OUT {
		return fmt.Errorf("%s is not the problem sold_out", refused.Body())
	}

	confirmed, _, err := core.ConfirmClaim(ctx, held.GetId()).Execute()
	if err := is(err, claimgate.CLAIMSTATUS_GRANTED, &confirmed.Claim.Status); err != nil {
		return err
	}
	returned, _, err := core.ReturnClaim(ctx, held.GetId()).Execute()
	if err := is(err, claimgate.CLAIMSTATUS_RETURNED, &returned.Claim.Status); err != nil {
		return err
	}
	return listed(ctx, admin, held.GetId())
}

// listed waits until SQL has the return, and checks the claim in the list.
func listed(ctx context.Context, admin *claimgate.AdminAPIService, id string) error {
	for end := time.Now().Add(45 * time.Second); time.Now().Before(end); {
		call := admin.ListClaims(ctx, "go").UserId("alice").Status(claimgate.CLAIMSTATUS_RETURNED)
		page, _, err := call.Execute()
		if err != nil {
			return err
		}
		for _, item := range page.GetItems() {
			return is(is(nil, most, &item.Quantity), id, &item.Id)
		}
	}
	return errors.New("the returned claim is not listed")
}

// is returns err if it is not nil, or an error if found differs from expected.
func is[T comparable](err error, expected T, found *T) error {
	if err == nil && (found == nil || *found != expected) {
		return fmt.Errorf("%v instead of %v", found, expected)
	}
	return err
}
