package main

import "context"

func runPackages(ctx context.Context, o options) error { return nil }
