package plancheck

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize/convex/lp"
)

// Solver solves linear programs.
type Solver interface {
	// solve returns the values of the variables.
	solve(p *program) ([]float64, error)
	// aggregates reports whether the solver is for programs whose flows are aggregated, which have fewer variables and more rows.
	aggregates() bool
}

// ErrTooLarge is the error of a program that has more cells than Dense allows.
var ErrTooLarge = errors.New("the linear program is too large")

// Dense is gonum's simplex method on a dense matrix. It takes the cube of the size: programs of more than so many cells have ErrTooLarge.
type Dense struct{ Cells int }

// held is what a unit of a fixed rate counts in the objective, beside 1 of a rate that is raised: much more than it can be exchanged for.
const held = 1000

func (d Dense) aggregates() bool { return false }

// String names the solver.
func (d Dense) String() string { return fmt.Sprintf("gonum, up to %d cells", d.Cells) }

// solve makes a row of each upper bound. Since all variables may be 0, no bound is below 0 and the method has a basis to begin with.
func (d Dense) solve(p *program) ([]float64, error) {
	vars := len(p.columns)
	bounds := append([]float64(nil), p.bounds...)
	for _, c := range p.columns {
		if !math.IsInf(c.most, 1) {
			bounds = append(bounds, c.most)
		}
	}
	if len(bounds)*(vars+len(bounds)) > d.Cells {
		return nil, ErrTooLarge
	}
	a := mat.NewDense(len(bounds), vars+len(bounds), nil)
	var basis []int
	for r := range bounds {
		bounds[r] += 1e-5 * (1 + math.Mod(float64(r)*0.618034, 1)) // simplex walks in circles where many bounds are equal
		a.Set(r, vars+r, 1)
		basis = append(basis, vars+r)
	}
	cost := make([]float64, vars+len(bounds))
	own := len(p.bounds)
	for v, c := range p.columns {
		cost[v] = -c.gain
		for _, e := range c.entries {
			a.Set(e.row, v, e.value)
		}
		if c.fixed {
			cost[v] = -held
		}
		if !math.IsInf(c.most, 1) {
			a.Set(own, v, 1)
			own++
		}
	}
	_, x, err := lp.Simplex(cost, a, bounds, 1e-9, basis)
	if err != nil {
		return nil, err
	}
	for v, c := range p.columns {
		if c.fixed && x[v] < c.most*(1-1e-9)-1e-9 {
			return nil, fmt.Errorf("variable %d is %.6f, and not %.6f", v, x[v], c.most)
		}
	}
	return x[:vars], nil
}

// CLP is the solver of COIN-OR, the program clp. Programs and solutions are files in a directory.
type CLP struct {
	dir                         string
	solved, maxRows, maxColumns int
}

// RequireCLP returns the solver. It skips the test if the program clp (Debian package coinor-clp) is missing, and gives the reason. With
// GRAYLINK_REQUIRE_ALL=1 a missing program fails the test.
func RequireCLP(tb testing.TB) *CLP {
	tb.Helper()
	if _, err := exec.LookPath("clp"); err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			tb.Fatal("needs clp")
		}
		tb.Skip("needs clp")
	}
	return &CLP{dir: tb.TempDir()}
}

func (c *CLP) aggregates() bool { return true }

// String says what was solved.
func (c *CLP) String() string {
	return fmt.Sprintf("clp, %d programs of up to %d rows and %d columns", c.solved, c.maxRows, c.maxColumns)
}

func (c *CLP) solve(p *program) ([]float64, error) {
	c.solved++
	c.maxRows, c.maxColumns = max(c.maxRows, len(p.bounds)), max(c.maxColumns, len(p.columns))
	in, out := filepath.Join(c.dir, "program.mps"), filepath.Join(c.dir, "solution.txt")
	var text bytes.Buffer
	writeMPS(&text, p)
	if err := os.WriteFile(in, text.Bytes(), 0o600); err != nil {
		return nil, err
	}
	if err := os.Remove(out); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	said, err := exec.CommandContext(context.Background(), "clp", in, "-primalTolerance", "1e-9", "-dualTolerance", "1e-9", "-solve", "-solution", out).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("clp: %w: %s", err, said)
	}
	solution, err := os.ReadFile(out)
	if err != nil {
		return nil, fmt.Errorf("clp wrote no solution: %s", said)
	}
	return readSolution(bytes.NewReader(solution), len(p.columns))
}

// writeMPS writes a program in free MPS format. MPS minimizes, so gains have their signs changed.
func writeMPS(w io.Writer, p *program) {
	fmt.Fprintf(w, "NAME plan FREE\nROWS\n N gain\n")
	for r := range p.bounds {
		fmt.Fprintf(w, " L r%d\n", r)
	}
	fmt.Fprintf(w, "COLUMNS\n")
	for v, c := range p.columns {
		if c.gain != 0 {
			fmt.Fprintf(w, " x%d gain %.17g\n", v, -c.gain)
		}
		for _, e := range c.entries {
			fmt.Fprintf(w, " x%d r%d %.17g\n", v, e.row, e.value)
		}
	}
	fmt.Fprintf(w, "RHS\n")
	for r, b := range p.bounds {
		if b != 0 {
			fmt.Fprintf(w, " rhs r%d %.17g\n", r, b)
		}
	}
	fmt.Fprintf(w, "BOUNDS\n")
	for v, c := range p.columns {
		switch {
		case c.fixed:
			fmt.Fprintf(w, " FX bound x%d %.17g\n", v, c.most)
		case !math.IsInf(c.most, 1):
			fmt.Fprintf(w, " UP bound x%d %.17g\n", v, c.most)
		}
	}
	fmt.Fprintf(w, "ENDATA\n")
}

// readSolution reads what clp 1.17.6 writes: "Optimal" with the value of the objective, and a line with number, name, value and reduced cost of each
// variable that is not 0.
func readSolution(r io.Reader, columns int) ([]float64, error) {
	lines := bufio.NewScanner(r)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "Optimal - ") {
		return nil, fmt.Errorf("clp: %q, and not optimal", lines.Text())
	}
	x := make([]float64, columns)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 4 || !strings.HasPrefix(f[1], "x") {
			return nil, fmt.Errorf("clp: the line %q of its solution", lines.Text())
		}
		v, err := strconv.Atoi(f[1][1:])
		if err != nil || v < 0 || v >= columns {
			return nil, fmt.Errorf("clp: the variable %q of its solution", f[1])
		}
		if x[v], err = strconv.ParseFloat(f[2], 64); err != nil {
			return nil, fmt.Errorf("clp: the value %q of its solution", f[2])
		}
	}
	return x, lines.Err()
}
