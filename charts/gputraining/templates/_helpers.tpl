{{/* Name of the operator's objects: gputraining-operator for a release called gputraining. */}}
{{- define "gputraining.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $prefix := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- printf "%s-operator" ($prefix | trunc 53 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* Name of cluster-wide objects: releases of the same name in several namespaces do not collide. */}}
{{- define "gputraining.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "gputraining.fullname" .) -}}
{{- end -}}

{{- define "gputraining.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gputraining.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "gputraining.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "gputraining.labels" -}}
{{ include "gputraining.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Reference of an image: (dict "image" .Values.image "root" .) */}}
{{- define "gputraining.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* What the operator may do with namespaced objects: what it does, and no more. */}}
{{- define "gputraining.rules" -}}
- apiGroups: [gputraining.dev]
  resources: [gputrainings]
  verbs: [get, list, watch, delete]
- apiGroups: [gputraining.dev]
  resources: [gputrainings/status]
  verbs: [patch]
- apiGroups: [kubeflow.org]
  resources: [pytorchjobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Listed to say why the training-operator could not make a pod, or the kubelet could not mount a volume.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end -}}
