//go:build !all

package plan

const c4Seeds = 2 // of 20 with the tag all
