package fabric

// ClassCSIG is the class of traffic whose probes carry in-band signals (docs/csig.md). Switches may drop or delay what is tagged, so that
// such flows are never evidence of loss or delay.
const ClassCSIG = "csig"
