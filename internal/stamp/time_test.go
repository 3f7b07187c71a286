package stamp

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

func unixNano(t *testing.T, s string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixNano()
}

func TestTimestampFormats(t *testing.T) {
	tests := []struct {
		at  string
		ptp Timestamp
		ntp Timestamp
	}{
		{"1970-01-01T00:00:00Z", 0, 0x83aa7e80_00000000},
		{"1970-01-01T00:00:00.000000001Z", 1, 0x83aa7e80_00000004},
		{"1970-01-01T00:00:00.5Z", 500_000_000, 0x83aa7e80_80000000},
		{"2026-11-20T10:00:00.999999999Z", 0x6b001a20_3b9ac9ff, 0xeeaa98a0_fffffffc},
		{"2036-02-07T06:28:15.999999999Z", 0x7c55817f_3b9ac9ff, 0xffffffff_fffffffc},
		{"2036-02-07T06:28:16Z", 0x7c558180_00000000, 0},
		{"2036-02-07T06:28:17Z", 0x7c558181_00000000, 1 << 32},
		{"2104-02-26T09:42:23Z", 0xfc55817f_00000000, 0x7fffffff_00000000},
	}
	for _, tt := range tests {
		ns := unixNano(t, tt.at)
		if got := TimestampPTP(ns); got != tt.ptp {
			t.Errorf("PTP(%s) = %#x, want %#x", tt.at, uint64(got), uint64(tt.ptp))
		}
		if got := TimestampNTP(ns); got != tt.ntp {
			t.Errorf("NTP(%s) = %#x, want %#x", tt.at, uint64(got), uint64(tt.ntp))
		}
		if got := TimestampPTP(ns).NanosPTP(); got != ns {
			t.Errorf("PTP: %s came back %d ns off", tt.at, got-ns)
		}
		if got := TimestampNTP(ns).NanosNTP(); got != ns {
			t.Errorf("NTP: %s came back %d ns off", tt.at, got-ns)
		}
	}
}

func TestTimestampEras(t *testing.T) {
	ntpFirst, ntpLast := unixNano(t, "1968-01-20T03:14:08Z"), unixNano(t, "2104-02-26T09:42:23.999999999Z")
	ptpLast := unixNano(t, "2106-02-07T06:28:15.999999999Z")
	const ntpEra, ptpEra = 1 << 32 * nanosPerSecond, 1 << 32 * nanosPerSecond
	tests := []struct {
		name      string
		got, want int64
	}{
		{"first of NTP", TimestampNTP(ntpFirst).NanosNTP(), ntpFirst},
		{"before the first of NTP", TimestampNTP(ntpFirst - 1).NanosNTP(), ntpFirst - 1 + ntpEra},
		{"last of NTP", TimestampNTP(ntpLast).NanosNTP(), ntpLast},
		{"after the last of NTP", TimestampNTP(ntpLast + 1).NanosNTP(), ntpLast + 1 - ntpEra},
		{"first of PTP", TimestampPTP(0).NanosPTP(), 0},
		{"before the first of PTP", TimestampPTP(-1).NanosPTP(), ptpEra - 1},
		{"last of PTP", TimestampPTP(ptpLast).NanosPTP(), ptpLast},
		{"after the last of PTP", TimestampPTP(ptpLast + 1).NanosPTP(), 0},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

func TestTimestampRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	from, to := unixNano(t, "1968-01-20T03:14:08Z"), unixNano(t, "2104-02-26T09:42:23Z")
	for range 200_000 {
		ns := from + rng.Int64N(to-from)
		if got := TimestampNTP(ns).NanosNTP(); got != ns {
			t.Fatalf("NTP: %d came back as %d", ns, got)
		}
		if ns < 0 {
			continue
		}
		for _, ptp := range []bool{false, true} {
			if got := NewTimestamp(ns, ptp).Nanos(NewErrorEstimate(1, true, ptp)); got != ns {
				t.Fatalf("PTP %v: %d came back as %d", ptp, ns, got)
			}
		}
	}
}

func TestErrorEstimateFields(t *testing.T) {
	tests := []struct {
		bound       int64
		synced, ptp bool
		want        ErrorEstimate
		back        int64
	}{
		{0, false, false, 0x0001, 1},
		{1, true, false, 0x8005, 2}, // 5 * 0.233 ns = 1.16 ns
		{59, true, true, 0xc0fe, 60},
		{60, false, true, 0x4181, 61},
		{200, true, true, 0xc2d7, 201},
		{1_000_000_000, false, false, 0x1980, 1_000_000_000},
		{1_000_000_001, false, false, 0x1981, 1_007_812_500},
		{1<<31*nanosPerSecond - 1, false, false, 0x3880, UnknownBound},
		{1 << 31 * nanosPerSecond, false, false, 0x3fff, UnknownBound},
		{UnknownBound, true, true, 0xffff, UnknownBound},
		{-1, true, false, 0xbfff, UnknownBound},
	}
	for _, tt := range tests {
		e := NewErrorEstimate(tt.bound, tt.synced, tt.ptp)
		if e != tt.want || e.BoundNS() != tt.back {
			t.Errorf("NewErrorEstimate(%d, %v, %v) = %#x of %d ns, want %#x of %d ns",
				tt.bound, tt.synced, tt.ptp, uint16(e), e.BoundNS(), uint16(tt.want), tt.back)
		}
		if e.IsSynced() != tt.synced || e.IsPTP() != tt.ptp || !e.IsValid() {
			t.Errorf("%#x: S %v, Z %v, valid %v", uint16(e), e.IsSynced(), e.IsPTP(), e.IsValid())
		}
	}
	if e := ErrorEstimate(0xff00); e.IsValid() || e.BoundNS() != UnknownBound {
		t.Errorf("multiplier 0: valid %v, bound %d", e.IsValid(), e.BoundNS())
	}
}

// units returns e in units of 2^-32 s, exactly.
func units(e ErrorEstimate) *big.Int {
	return new(big.Int).Lsh(big.NewInt(int64(e.Multiplier())), uint(e.Scale()))
}

// TestErrorEstimateIsTheSmallest compares every bound with all 16320 estimates.
func TestErrorEstimateIsTheSmallest(t *testing.T) {
	var all []*big.Int
	for scale := range 64 {
		for mult := 1; mult < 256; mult++ {
			all = append(all, units(ErrorEstimate(scale<<8|mult)))
		}
	}
	bounds := []int64{0, 1, 2, 59, 60, 61, 255, 256, 257, 1e9 - 1, 1e9, 1e9 + 1, 1<<31*nanosPerSecond - 1}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		bounds = append(bounds, rng.Int64N(1<<31*nanosPerSecond)>>rng.IntN(61))
	}
	for _, bound := range bounds {
		// The estimate e is at least the bound when e * 10^9 >= bound * 2^32.
		want := new(big.Int).Lsh(big.NewInt(bound), 32)
		billion := big.NewInt(nanosPerSecond)
		var least *big.Int
		for _, u := range all {
			if new(big.Int).Mul(u, billion).Cmp(want) >= 0 && (least == nil || u.Cmp(least) < 0) {
				least = u
			}
		}
		e := NewErrorEstimate(bound, false, false)
		if units(e).Cmp(least) != 0 {
			t.Errorf("bound %d: %v units, want %v", bound, units(e), least)
		}
		if e.BoundNS() < bound {
			t.Errorf("bound %d came back as %d, less", bound, e.BoundNS())
		}
	}
}

// TestErrorEstimateBound compares BoundNS of all 65536 values with integers
// of any size.
func TestErrorEstimateBound(t *testing.T) {
	for v := range 1 << 16 {
		e := ErrorEstimate(v)
		// Rounded up: (units * 10^9 + 2^32 - 1) / 2^32.
		ns := new(big.Int).Mul(units(e), big.NewInt(nanosPerSecond))
		ns.Add(ns, big.NewInt(1<<32-1)).Rsh(ns, 32)
		want := int64(math.MaxInt64)
		if e.Multiplier() != 0 && ns.Cmp(big.NewInt(maxBoundSeconds*nanosPerSecond)) < 0 {
			want = ns.Int64()
		}
		if got := e.BoundNS(); got != want {
			t.Fatalf("%#x: %d ns, want %d", v, got, want)
		}
	}
}
