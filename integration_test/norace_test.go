//go:build !race

package integration_test

const race = false
