//go:build !linux

package mcp_test

// If peers can't be identified, nobody can call as another user.
const stranger = "UNITASK_TEST_STRANGER"

func callAsStranger(string) int { return 1 }
