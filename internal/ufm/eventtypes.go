package ufm

import "strings"

// eventTypes lists the types of events and their names, one a line. The numbers and names are those of the
// events policy that NVIDIA publishes with UFM's SDK (Mellanox/ufm_sdk_3.0, policy.csv of the log analyzer),
// without those about virtual machines, logical servers and the history of monitoring.
const eventTypes = `
64 GID Address In Service
65 GID Address Out of Service
66 New MCast Group Created
67 MCast Group Deleted
110 Symbol Error
111 Link Error Recovery
112 Link Downed
113 Port Receive Errors
114 Port Receive Remote Physical Errors
115 Port Receive Switch Relay Errors
116 Port Xmit Discards
117 Port Xmit Constraint Errors
118 Port Receive Constraint Errors
119 Local Link Integrity Errors
120 Excessive Buffer Overrun Errors
121 VL15 Dropped
122 Congested Bandwidth (%) Threshold Reached
123 Port Bandwidth (%) Threshold Reached
130 Non-optimal link width
134 T4 Port Congested Bandwidth
141 Flow Control Update Watchdog Timer Expired
144 Capability Mask Modified
145 System Image GUID changed
156 Link Speed Enforcement Disabled
250 Running in Limited Mode
251 Switching to Limited Mode
252 License Expired
253 Duplicated licenses
254 License Limit Exceeded
255 License is About to Expire
256 Bad M_Key
257 Bad P_Key
258 Bad Q_Key
259 Bad P_Key Switch External Port
328 Link is Up
329 Link is Down
331 Node is Down
332 Node is Up
336 Port Action Succeeded
337 Port Action Failed
338 Device Action Succeeded
339 Device Action Failed
344 Partial Switch ASIC Failure
352 Network Added
353 Network Removed
370 Gateway Ethernet Link State Changed
371 Gateway Re-register Event Received
372 Number of Gateways is Changed
373 Gateway will be Rebooted
374 Gateway Reloading Finished
380 Switch Upgrade Error
381 Switch Upgrade Error
382 Module status NOT PRESENT
383 Host Upgrade Failed
384 Switch Module Powered Off
385 Switch FW Upgrade Started
386 Switch SW Upgrade Started
387 Switch Upgrade Finished
388 Host FW Upgrade Started
389 Host OFED Upgrade Started
391 Switch Module Removed
392 Module Temperature Threshold Reached
393 Switch Module Added
394 Module status FAULT
395 Device Action Started
396 Site Action Started
397 Site Action Failed
398 Switch Chip Added
399 Switch Chip Removed
403 Device Pending Reboot
404 System Information is missing
405 Switch Identity Validation Failed
406 Switch System Information is missing
407 COMEX Ambient Temperature Threshold Reached
502 Device Upgrade Finished
506 Device Upgrade Finished
508 Core Dump Created
510 SM Failover
511 SM State Change
512 SM UP
513 SM System Log Message
514 SM LID Change
515 Fabric Health Report Info
516 Fabric Health Report Warning
517 Fabric Health Report Error
518 UFM-related process is down
519 Logs purge failure
520 Restart of UFM-related process succeeded
521 UFM is being stopped
522 UFM is being restarted
523 UFM failover is being attempted
524 UFM cannot connect to DB
525 Disk utilization threshold reached
526 Memory utilization threshold reached
527 CPU utilization threshold reached
528 Fabric interface is down
529 UFM standby server problem
530 SM is down
531 DRBD Bad Condition
532 Remote UFM-SM Sync
533 Remote UFM-SM problem
535 MH Purge Failed
536 UFM Health Watchdog Info
537 UFM Health Watchdog Critical
538 Time Diff Between HA Servers
539 DRBD TCP Connection Performance
540 Daily Report Completed successfully
541 Daily Report Completed with Error
542 Daily Report Failed
543 Daily Report Mail Sent successfully
544 Daily Report Mail Sent Failed
545 SM is not responding
546 Management interface is down
547 UFM stopped polling SM for updates
548 Failed to run generic script test
551 General External Event Notification
552 General External Event Notice
553 General External Event Alert
554 General External Event Error
560 User Connected
561 User Disconnected
602 UFM Server Failover
603 Events Suppression
604 Report Succeeded
605 Report Failed
606 Correction Attempts Paused
701 Non-optimal Link Speed
702 Unhealthy IB Port
703 Fabric Collector Connected
704 Fabric Collector Disconnected
750 High data retransmission count on port
901 Fabric Configuration Started
902 Fabric Configuration Completed
903 Fabric Configuration Failed
904 Device Configuration Failure
905 Device Configuration Timeout
906 Provisioning Validation Failure
907 Switch is Down
908 Switch is Up
909 Director Switch is Down
910 Director Switch is Up
911 Module Temperature Low Threshold Reached
912 Module Temperature High Threshold Reached
913 Module High Voltage
914 Module High Current
915 Critical BER reported
916 High BER reported
917 Critical Symbol BER reported
918 High Symbol BER reported
919 Cable Temperature High
920 Cable Temperature Low
1300 SA Key violation
1301 SGID Spoofed
1302 SA High Rate detected
1303 Multicast subscriptions over limit
1304 Service Record subscriptions over limit
1305 Event subscriptions over limit
1306 Unallowed SM was detected in the fabric
1307 SMInfo SET request was received from unallowed SM
1309 SM was detected with non-matching SMKey
1310 Duplicated node GUID was detected
1311 Duplicated port GUID was detected
1312 Switch was Rebooted
1400 High Ambient Temperature
1401 High Fluid Temperature
1402 Low Fluid Level
1403 Low Supply Pressure
1404 High Supply Pressure
1405 Low Return Pressure
1406 High Return Pressure
1407 High Differential Pressure
1408 Low Differential Pressure
1409 System Fail Safe
1410 Fault Critical
1411 Fault Pump1
1412 Fault Pump2
1413 Fault Fluid Level Critical
1414 Fault Fluid Over Temperature
1415 Fault Primary DC
1416 Fault Redundant DC
1417 Fault Fluid Leak
1418 Fault Sensor Failure
1419 Cooling Device Monitoring Error
1420 Cooling Device Communication Error
1500 New Cable Detected
1502 Cable detected in a new location
1503 Duplicate Cable Detected
1504 SHARP Allocation Succeeded
1505 SHARP Allocation Failed
1506 SHARP Deallocation Succeeded
1507 SHARP Deallocation Failed
1508 Device Collect System Dump Started
1509 Device Collect System Dump Finished
1510 Device Collect System Dump Error
1511 Virtual Port Added
1512 Virtual Port Removed
1513 Burn Cables Transceivers Started
1514 Burn Cables Transceivers Finished
1515 Burn Cables Transceivers Failed
1516 Activate Cables Transceivers FW Finished
1517 Activate Cables Transceivers FW Failed
1520 Aggregation Node Discovery Failed
1521 Job Started
1522 Job Ended
1523 Job Start Failed
1524 Job Error
1525 Trap QP Error
1526 Trap Invalid Request
1527 Trap Sharp Error
1528 Trap QP Alloc timeout
1529 Trap AMKey Violation
1530 Unsupported Trap
1531 Reservation Updated
1532 Sharp is not Responding
1533 Agg Node Active
1534 Agg Node Inactive
1535 Trap AMKey Violation Triggered by AM
1550 Guids Were Added to Pkey
1551 Guids Were Removed from Pkey
1600 VS/CC Classes Key Violation
`

// eventNames maps types to names.
var eventNames = func() map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(eventTypes) {
		if code, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			out[code] = name
		}
	}
	return out
}()

// Other is the kind of events, and the severity, that are in no table.
const Other = "other"

// EventKind returns the name of a type of events for series: one of a table, or Other. The name that UFM writes
// is ignored, because it may be any text.
func EventKind(code string) string {
	if name, ok := eventNames[code]; ok {
		return name
	}
	return Other
}

// severities are UFM's severities in ascending order.
var severities = []string{"Info", "Warning", "Minor", "Major", "Critical"}

// SeverityKind returns a severity for series: one of UFM's, or Other.
func SeverityKind(severity string) string {
	for _, s := range severities {
		if strings.EqualFold(s, severity) {
			return s
		}
	}
	return Other
}
