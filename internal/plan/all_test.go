//go:build all

package plan

const c4Seeds = 20
