-- Stages that took more than half of a recovery from a fault, and ten seconds at least: one of a recovery at most
-- col incident: number of the recovery, as in recoveries
-- col stage: as in recovery_stages
-- col seconds: how long it took
-- col mttr_s: how long the recovery took
SELECT s.bundle, s.host, s.capture, s.incident, s.stage, s.seconds, r.mttr_s, s.source
FROM recovery_stages s JOIN recoveries r ON r.bundle = s.bundle AND r.host IS NOT DISTINCT FROM s.host AND r.capture = s.capture AND r.incident = s.incident
WHERE r.cause NOT IN ('start', 'external-stop') AND s.stage NOT IN ('traffic_switched', 'warm') AND s.seconds >= 10 AND s.seconds > 0.5 * r.mttr_s
